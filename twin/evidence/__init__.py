"""From what was measured to what to do: facts, span classes, hypotheses, sensitivity, grade. Pure, no files."""
