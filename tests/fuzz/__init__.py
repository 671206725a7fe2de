# SPDX-License-Identifier: Apache-2.0
"""What comes from outside, damaged at random, and what must hold all the same.

The inputs are made by hypothesis, not by code of our own, nor by atheris. It is here for the property tests
anyway, makes values that have a shape, shrinks what fails, and repeats all of it from a seed; atheris follows
branches, but wants libFuzzer built in, and code of ours for each shape. What hypothesis does not have is
a bound in time, for all and for each input: ``running`` asks it for one short round after the other, each
with a seed of its own, until the time is over.
"""
