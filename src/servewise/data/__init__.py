"""Built-in data: facts and derived coefficients, each with its source; read through ``importlib.resources``."""
