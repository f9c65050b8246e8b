"""Does a reward deserve trust? Saved clips scored again, compared, diagnosed and attacked."""
