"""From records to what people read: tidy tables, statistics, figures, tables, the HTML page."""
