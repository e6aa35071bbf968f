"""One small file per input format; `registry` lists them."""
