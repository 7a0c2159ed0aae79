"""The built-in kernels: one module a family, each with its ``SPECS`` tuple, beside one ``.cu`` in kernels_cu/."""
