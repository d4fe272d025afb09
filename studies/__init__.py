"""Studies whose records and tables are in results/ and docs/. They need a checkout; no wheel has them."""
