"""Second, plain implementations of what the kernel does fast: the oracle it is compared with."""
