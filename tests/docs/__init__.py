"""The documentation is true: links, commands, examples and the output in the README."""
