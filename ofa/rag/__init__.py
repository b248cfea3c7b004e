"""Documents in, passages out: chunk, embed, keep, find, fence, remember."""
