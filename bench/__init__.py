"""Measures ofa beside its peers: every figure a ratio within one run, or a bound."""
