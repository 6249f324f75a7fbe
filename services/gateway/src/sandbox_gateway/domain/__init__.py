"""What charges, refunds, webhooks and failures are: plain values and pure functions, no database, network or clock."""
