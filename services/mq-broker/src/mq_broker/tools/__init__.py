"""What an operator runs beside a broker or on its stopped store. Nothing here writes to a store."""
