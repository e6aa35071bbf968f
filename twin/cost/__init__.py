"""What a step costs: its shape, models that learn it online, and the frozen form that simulation uses."""
