"""TREC Deep Learning 2019 to 2023."""
