//! What edges and relays say to each other on top of links: routing header and control messages, pure.
