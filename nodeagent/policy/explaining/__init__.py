# SPDX-License-Identifier: Apache-2.0
"""What a person may ask for by its name, from what is offered and what can be made of cards. Pure."""
