"""What to do about a forecast: candidate actions tried in the twin, and proposals that do not flap."""
