"""The catalogue of kernels and the records that describe, build and launch them."""
