"""What the bridges to federations share: how many nodes may be corrupt, verdicts of rounds, their record."""
