"""Processes of their own that the bench starts: what they hold dies with them."""
