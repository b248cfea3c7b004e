"""Everything that can continue a chat, behind the one seam in `base`."""
