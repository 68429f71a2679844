"""The demo's own services: an order flow, a lossy link, and a matching service."""
