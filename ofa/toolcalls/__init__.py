"""Tool calls: one module a model family, and what holds for all of them."""
