"""The in-process engine on MLX, for local models."""
