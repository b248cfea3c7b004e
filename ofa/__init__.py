"""Put a local Gemma, with a site's own documents, behind an OpenAI-compatible API."""

__version__ = "0.1.0"
