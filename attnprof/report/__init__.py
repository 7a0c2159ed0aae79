"""Plain results to tables, JSON, CSV and Markdown."""
