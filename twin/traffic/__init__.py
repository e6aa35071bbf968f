"""Traffic to come: history folded online, rate forecasts, output lengths, resampling, stress scenarios."""
