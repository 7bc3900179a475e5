"""What people read: the terminal's tables, Markdown, live progress. Computes nothing; shows what stats has found."""
