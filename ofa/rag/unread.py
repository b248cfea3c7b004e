"""Why a file gave no text: the word that its readers share."""

from __future__ import annotations


class Unread(Exception):
    """A file that can't be read; its text is the reason, for people."""
