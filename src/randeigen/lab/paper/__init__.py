"""The paper, reproduced: what it reports, the experiments as cells, and what the records measured."""
