"""Mining: documents worth grading for each query, and queries for documents."""
