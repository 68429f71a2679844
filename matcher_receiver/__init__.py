"""Hands a chain's rows on in order, once each, whatever the broker did to them."""
