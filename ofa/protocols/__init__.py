"""One module a wire dialect: JSON in, JSON and frames out."""
