"""Whether a score is a probability: reliability, Platt scaling, thresholds, prevalence."""
