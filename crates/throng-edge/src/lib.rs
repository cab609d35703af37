//! The data plane: workers that park connections and deliver to them.
