//! Lines of calls: sites, their callers, and the frames of packages.

use super::*;

/// A line of an installed package.
fn library_site(id: u32, line: u32, caller: u32) -> v1::SiteDefined {
    v1::SiteDefined {
        library: true,
        file: "/v/site-packages/t.py".into(),
        ..site(id, line, caller)
    }
}

/// The place of a call at the site `id`, after these definitions.
fn place_of(sites: Vec<v1::SiteDefined>, id: u32) -> Where {
    let mut kinds: Vec<Kind> = sites.into_iter().map(Kind::SiteDefined).collect();
    kinds.push(Kind::Record(v1::Record { site: id, ..record(0, RecordKind::InputEnded, 0) }));
    let events = decode(&mut known(), kinds);
    let place = events.iter().find_map(|event| match event {
        Event::InputEnded { place, .. } => place.as_deref(),
        _ => None,
    });
    place.unwrap().clone()
}

#[test]
fn library_sites_lead_to_the_users_line() {
    let lines = |place: &Where| -> Vec<u32> { place.via.iter().map(|it| it.line).collect() };
    let sites = vec![site(1, 9, 0), library_site(2, 20, 1), library_site(3, 30, 2)];
    let place = place_of(sites, 3);
    assert_eq!((&*place.file, place.line, place.library), ("t.py", 9, false));
    assert_eq!(lines(&place), [20, 30]);

    let alone = place_of(vec![library_site(1, 20, 0), library_site(2, 30, 1)], 2);
    assert_eq!((alone.line, alone.library), (20, true));
    assert_eq!(lines(&alone), [30]);
}

#[test]
fn chain_of_library_sites_is_bounded() {
    let mut sites = vec![site(1, 9, 0)];
    sites.extend((2..2000).map(|id| library_site(id, id, id - 1)));
    let place = place_of(sites, 1999);
    assert_eq!((place.line, place.via.len()), (9, 16));
}

#[test]
fn library_site_is_reached_from_the_users_line() {
    let mut decoder = known();
    let sites = [site(1, 9, 0), library_site(2, 20, 1)];
    decode(&mut decoder, sites.map(Kind::SiteDefined).to_vec());
    let events = decode(&mut decoder, vec![Kind::SiteDefined(library_site(3, 30, 2))]);
    let [Event::Site { caller: Some(caller), .. }] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!((caller.line, caller.via.len()), (9, 0));
}

#[test]
fn site_has_its_caller_and_later_its_guards() {
    let mut decoder = known();
    let mut read = site(2, 4, 1);
    read.guards = vec![v1::Guard {
        line: 3,
        test: "rank == 0".into(),
        subject: 1,
        form: 1,
        ..v1::Guard::default()
    }];
    let defined = |site: &v1::SiteDefined| Kind::SiteDefined(site.clone());
    let stream =
        vec![defined(&site(1, 9, 7)), defined(&site(2, 4, 1)), defined(&read), defined(&read)];
    let events = decode(&mut decoder, stream);
    let [Event::Site { place, caller, .. }, Event::Site { place: again, caller: None, guards, .. }] =
        events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!((place.line, again.line), (4, 4));
    assert_eq!(caller.as_ref().map(|caller| caller.line), Some(9));
    assert_eq!(guards.len(), 1);
    assert_eq!((guards[0].line, &*guards[0].test), (3, "rank == 0"));
    assert_eq!(decoder.rejected(), 0);
}

#[test]
fn callers_never_form_a_cycle() {
    let mut decoder = known();
    let mut forward = record(0, RecordKind::Step, 0);
    forward.site = 2;
    forward.flags = u32::from(flags::FORWARD | flags::REPEATED);
    forward.numel = Some(7);
    let events = decode(
        &mut decoder,
        vec![
            Kind::SiteDefined(site(1, 9, 2)),
            Kind::SiteDefined(site(2, 4, 1)),
            Kind::SiteDefined(site(3, 5, 3)),
            Kind::Record(forward),
        ],
    );
    let Some(Event::Step { forward: Some(forward), .. }) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(forward.path.as_deref(), Some("t.py:4;t.py:9;"));
    assert_eq!(forward.batches, Some(7));
    assert!(forward.repeated && !forward.unsynchronized);
}
