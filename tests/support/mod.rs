//! What the suites share: packets, namespaces, real servers.
