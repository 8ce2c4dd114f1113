"""Scores as probabilities: reliability, Platt scaling, thresholds, prevalence."""
