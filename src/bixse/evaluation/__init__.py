"""Metrics, intervals, calibration, and the evaluation of models."""
