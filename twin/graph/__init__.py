"""The operator graph: a model's config becomes operators with work, data dependencies and a place on streams."""
