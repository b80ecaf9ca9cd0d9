//! Membership, prefix index, routing, gateway.
