use super::*;

fn decode(record: &[u8]) -> Result<FrozenConnection, ThawError> {
    Decoder::new(record).and_then(|(_, decoder)| FrozenConnection::decode(decoder))
}

fn subscription(local: u32) -> FrozenSubscription {
    let mut encoder = Encoder::new(RecordKind::Connection);
    encoder.u32(local);
    encoder.u64(1 << 40);
    encoder.u8(0);
    let record = encoder.finish();
    let (_, mut decoder) = Decoder::new(&record).unwrap();
    FrozenSubscription::decode(&mut decoder).unwrap()
}

fn session() -> FrozenSession {
    FrozenSession { tags: 1 << 50, grants: 3, expires_s: 7000, lead: Lead::from_s(60) }
}

fn parked() -> FrozenConnection {
    FrozenConnection {
        id: ConnectionId::new(7),
        generation: Generation::from_number(9).unwrap(),
        due: 1234,
        expires: None,
        identify_by: None,
        options: Options::default(),
        session: None,
        address: None,
        state: State::Streaming,
        encoding: Encoding::WEBSOCKET,
        flags: Flags::SERVED,
        subscriptions: vec![subscription(3)],
        pending_close: None,
        io: None,
        tls: None,
    }
}

/// A connection with everything that one can have, but for what a long-poll has.
fn busy() -> FrozenConnection {
    let frame = HalfFrame { missing_bytes: 77, mask: [1, 2, 3, 4], is_final: true };
    let io = FrozenIo {
        inbound: b"half a header".to_vec(),
        half_read: Some(HalfRead {
            is_text: true,
            is_compressed: false,
            has_fragments: true,
            frame: Some(frame),
            payload: b"half a message".to_vec(),
        }),
        message_since: 1200,
        partial: Some(FrozenPartial {
            message: 2,
            is_compressed: false,
            from: 5,
            encoded_bytes: 9,
        }),
        outbound: Some(OutboundRest {
            bytes: b"an answer".to_vec(),
            deliveries: vec![(3, 1), (9, 2)],
            progress: Progress { since: 1100, left: Left { here: 9, in_kernel: 4 } },
        }),
        long_poll: Some(LongPoll {
            origin: Some("origin".into()),
            request_id: Some("request".into()),
            allow_credentials: true,
            no_referrer: true,
            is_recovered: Some(true),
            begin: None,
            wants_state: false,
        }),
        unacknowledged_ms: Vec::new(),
    };
    FrozenConnection {
        flags: parked().flags.with(Flags::BLOCKED, true),
        expires: Some(5000),
        session: Some(session()),
        address: Some("2001:db8::1".parse().unwrap()),
        tls: Some(b"keys and records".to_vec()),
        subscriptions: vec![subscription(3), subscription(1)],
        pending_close: Some(Some(1000)),
        io: Some(io),
        ..parked()
    }
}

/// A connection whose client has to acknowledge two frames.
fn owing(encoding: Encoding) -> FrozenConnection {
    let unacknowledged_ms = vec![1_000, 2_000];
    let (outbound, long_poll) = (None, None);
    let io = FrozenIo {
        inbound: Vec::new(),
        half_read: None,
        message_since: 0,
        partial: None,
        outbound,
        long_poll,
        unacknowledged_ms,
    };
    FrozenConnection { encoding, io: Some(io), ..parked() }
}

#[test]
fn a_parked_subscriber_takes_a_few_tens_of_bytes() {
    assert_eq!(parked().encode().len(), 35);
}

#[test]
fn a_connection_is_read_back_whole_and_never_in_part() {
    let waiting = FrozenConnection {
        state: State::LongPolling,
        encoding: Encoding::POLL_ENVELOPE,
        pending_close: Some(None),
        io: None,
        ..parked()
    };
    let mut compressed = busy();
    compressed.encoding = Encoding::V1_DEFLATE;
    if let Some(io) = &mut compressed.io {
        io.half_read.as_mut().unwrap().is_compressed = true;
        io.partial.as_mut().unwrap().is_compressed = true;
    }
    let stranger = FrozenConnection { identify_by: Some(4000), ..parked() };
    for frozen in [parked(), busy(), waiting, compressed, stranger, owing(Encoding::V1_COMPACT)] {
        let record = frozen.encode();
        assert_eq!(decode(&record), Ok(frozen));
        for end in 0..record.len() {
            assert!(decode(&record[..end]).is_err(), "cut at {end}");
        }
        let longer = [record, vec![0]].concat();
        assert!(decode(&longer).is_err());
    }
}

#[test]
fn what_no_worker_can_have_is_refused() {
    let is_refused = |frozen: FrozenConnection| decode(&frozen.encode()).is_err();
    assert!(!is_refused(parked()));
    let far = ConnectionId::new(ConnectionName::INDICES_MAX as u32);
    assert!(is_refused(FrozenConnection { id: far, ..parked() }));
    assert!(is_refused(FrozenConnection { state: State::Head, ..parked() }));
    let twice = vec![subscription(3), subscription(3)];
    assert!(is_refused(FrozenConnection { subscriptions: twice, ..parked() }));
    let (state, encoding) = (State::LongPolling, Encoding::POLL);
    let polls = FrozenConnection { state, encoding, ..parked() };
    assert!(!is_refused(polls.clone()));
    let identify_by = Some(4000);
    assert!(is_refused(FrozenConnection { identify_by, ..polls.clone() }));
    assert!(is_refused(FrozenConnection { identify_by, ..busy() }), "it has a session");
    assert!(is_refused(FrozenConnection { expires: Some(5000), ..polls }));
    let closing = FrozenConnection {
        state: State::Closing,
        subscriptions: Vec::new(),
        session: Some(session()),
        ..parked()
    };
    assert!(is_refused(closing));
    let in_reserve = Flags::IN_RESERVE;
    assert!(is_refused(FrozenConnection { flags: in_reserve, ..parked() }));
    // It subscribes, but has no place.
    assert!(is_refused(FrozenConnection { flags: Flags::default(), ..parked() }));
    let flags = parked().flags.with(Flags::AWAITS_CONTROL, true);
    assert!(is_refused(FrozenConnection { flags, ..parked() }));
    // Refused or timed out before the control plane took its request.
    let (state, flags) = (State::Closing, Flags::AWAITS_CONTROL);
    let subscriptions = Vec::new();
    assert!(!is_refused(FrozenConnection { state, flags, subscriptions, ..parked() }));
    // A poll with the frames of a WebSocket.
    assert!(is_refused(FrozenConnection { state: State::LongPolling, ..parked() }));
    // Output that nothing would ever write.
    assert!(is_refused(FrozenConnection { flags: parked().flags, ..busy() }));
    // An answer that is not read, and has no deadline.
    let blocked = Flags::SERVED.with(Flags::BLOCKED, true);
    assert!(!is_refused(FrozenConnection { flags: blocked, ..parked() }));
    for state in [State::Head, State::LongPolling, State::Closing] {
        let subscriptions = Vec::new();
        let frozen = FrozenConnection { state, flags: blocked, subscriptions, ..parked() };
        assert!(is_refused(frozen), "{state:?}");
    }
    let finished = parked().flags.with(Flags::FINISHED, true);
    assert!(is_refused(FrozenConnection { flags: finished, ..parked() }));
    // Compressed for a client that has not negotiated it, or on another transport.
    let mut partial = busy();
    partial.io.as_mut().unwrap().partial.as_mut().unwrap().is_compressed = true;
    assert!(is_refused(partial));
    let (state, encoding) = (State::Head, Encoding::WEBSOCKET_DEFLATE);
    let subscriptions = Vec::new();
    assert!(is_refused(FrozenConnection { state, encoding, subscriptions, ..parked() }));
    // It was asked for nothing.
    assert!(is_refused(owing(Encoding::V1)));
    let mut unknown = parked().encode();
    unknown[18] = 0x80;
    assert!(decode(&unknown).is_err(), "an unknown flag");
}

#[test]
fn every_encoding_is_read_back() {
    for encoding in (0..32).filter_map(Encoding::numbered) {
        let is_poll = matches!(encoding, Encoding::POLL | Encoding::POLL_ENVELOPE);
        let state = if is_poll { State::LongPolling } else { State::Streaming };
        let frozen = FrozenConnection { state, encoding, ..parked() };
        let record = frozen.encode();
        assert_eq!(decode(&record), Ok(frozen), "{encoding:?}");
        // An earlier version has eight numbers, and says the rest with these facts.
        let is_known = encoding.number() < 12;
        assert!(!is_known || record[14] < 8, "{encoding:?}");
        let of_v1 = matches!(encoding, Encoding::V1 | Encoding::V1_DEFLATE);
        assert_eq!(record[15] & 4 != 0, of_v1);
        assert_eq!(record[16] & 4 != 0, encoding.framing() == Framing::WebSocket);
    }
}

#[test]
fn any_byte_may_be_any_other() {
    let record = busy().encode();
    for at in 0..record.len() {
        for value in 0..=u8::MAX {
            let mut changed = record.clone();
            changed[at] = value;
            if let Ok(frozen) = decode(&changed) {
                assert_eq!(decode(&frozen.encode()), Ok(frozen), "{value} at {at}");
            }
        }
    }
}
