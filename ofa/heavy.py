"""
One thread at a time where transformers is imported or first used.

Its modules fill themselves in on first use. Two threads that do so at once, one with
the engine's model and one with the embedding model, find each other's half made:
"cannot import name 'AutoTokenizer' from 'transformers'", and the server has no engine.
"""

from __future__ import annotations

import threading

# Held by whoever loads a model with transformers, from the import to the tokenizer.
LOADING = threading.RLock()
