"""The series' host code in a released MLX, on a GPU: the matrix, speed beside the runtime delivery, decoding."""
