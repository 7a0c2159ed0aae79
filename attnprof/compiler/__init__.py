"""NVRTC without a driver: CUDA source to cubin or PTX, and the disk cache."""
