"""The only room that opens a connection to PostgreSQL or Kafka, or imports a driver.

The configs (`kafka_config`, `database_config`) and the options for other drivers (`kafka_options`,
`jdbc`) are pure and import no driver, so that reading settings costs no import of one. `kafka`,
`postgres` and `session` open connections.
"""
