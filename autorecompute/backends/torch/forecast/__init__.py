"""Forecasts of peaks and cards; nothing here imports torch."""
