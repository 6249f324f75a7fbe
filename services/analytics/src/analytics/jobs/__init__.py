"""The tables, each made by a pure function from DataFrame to DataFrame, with its schema beside it (mechanism Y6)."""
