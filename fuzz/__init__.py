"""A fuzzer for `randeigen`: hostile rows in every form, through every rule, and what must hold of the answer.

`python -m fuzz` runs it, `python -m fuzz --only SEED` repeats one input. An input is made from one integer
(`inputs`, with `clouds`, `recipes`, `forms` and `files`), checked (`properties`, `again`, `disk`, `others`,
`command`) and made smaller when it fails (`shrink`). `run` does so for many.
"""
