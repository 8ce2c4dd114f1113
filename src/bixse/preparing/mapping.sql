-- Macros for the expressions of formats.toml, and the queries that every format goes through. `j` is a row as JSON.

CREATE MACRO get(j, k) AS json_extract(j, '$."' || replace(k, '"', '\"') || '"');
CREATE MACRO has_scale() AS coalesce(getvariable('scale_stated'), false);
CREATE MACRO has_corpus() AS coalesce(getvariable('has_corpus'), false);
CREATE MACRO is_null(v) AS coalesce(json_type(v), 'NULL') = 'NULL';
CREATE MACRO is_absent(v) AS is_null(v) OR v->>'$' = '';
CREATE MACRO first_key(keys, names) AS coalesce(list_filter(names, lambda k: list_contains(keys, k))[1], names[1]);
CREATE MACRO first_value(j, names) AS list_filter(names, lambda k: NOT is_null(get(j, k)))[1];
CREATE MACRO white_space() AS '[\s\x0b\x1c-\x1f\x{85}\p{Z}]';
CREATE MACRO is_blank(s) AS regexp_full_match(s, white_space() || '*');
CREATE MACRO number(v) AS CASE
    WHEN json_type(v) IN ('BIGINT', 'UBIGINT', 'HUGEINT', 'UHUGEINT', 'DOUBLE') THEN TRY_CAST(v->>'$' AS DOUBLE)
    WHEN json_type(v) = 'VARCHAR' AND NOT contains(v->>'$', '_') THEN TRY_CAST(v->>'$' AS DOUBLE) END;
CREATE MACRO members(v) AS CASE  -- of a list; a value by itself is a list of one
    WHEN is_null(v) THEN [] WHEN json_type(v) = 'ARRAY' THEN json_extract(v, '$[*]') ELSE [v] END;

-- One document of a row: `key` is its column for messages, `val` a grade or score, found under `val_key`.
CREATE MACRO document(key, text := NULL, id := NULL, title := NULL, val := NULL, val_key := NULL, label := NULL) AS {
    key: key::VARCHAR, text: text::JSON, id: id::JSON, title: title::JSON,
    val: val::JSON, val_key: val_key::VARCHAR, label: label::DOUBLE};
CREATE MACRO texts(key, listed, scores, label) AS list_transform(
    list_zip(CASE WHEN json_type(listed) = 'ARRAY' THEN json_extract(listed, '$[*]') ELSE [] END,
             json_extract(scores, '$[*]')[:json_array_length(listed)]),
    lambda z: document(key, text := z[1], label := label, val_key := key || '_scores', val := z[2]));
CREATE MACRO passages(j, k, id_key, label, bare_is_text) AS list_transform(members(get(j, k)), lambda v: CASE
    WHEN json_type(v) = 'OBJECT' THEN document(k, text := get(v, 'text'), id := get(v, id_key),
        title := get(v, 'title'), val := get(v, 'score'), val_key := 'score', label := label)
    WHEN bare_is_text THEN document(k, text := v, label := label)
    ELSE document(k, id := v, val_key := 'score', label := label) END);
CREATE MACRO entry(j, k) AS {key: k::VARCHAR, value: get(j, k)};
CREATE MACRO negatives(j) AS list_filter(
    list_transform(list_zip(json_keys(j), json_extract(j, '$.*')), lambda z: {key: z[1], value: z[2]}),
    lambda e: regexp_full_match(e.key, '(negative|neg)(_?\d+)?') AND NOT is_null(e.value));
CREATE MACRO tuple(entries, label_key, labels) AS list_transform(
    list_zip(entries, CASE json_type(labels) WHEN 'ARRAY' THEN json_extract(labels, '$[*]')[:len(entries)]
                           ELSE list_resize([labels], len(entries), labels) END),
    lambda z, i: document(z[1].key, text := z[1].value, val_key := label_key, val := z[2],
                          label := CASE WHEN label_key IS NULL THEN (i = 1)::INT END));

-- What is wrong with a value, or NULL.
CREATE MACRO text_error(v) AS CASE
    WHEN json_type(v) IS NULL THEN 'nothing' WHEN json_type(v) <> 'VARCHAR' THEN v::VARCHAR
    WHEN is_blank(v->>'$') THEN 'an empty text' END;
CREATE MACRO id_error(v, is_read) AS CASE
    WHEN is_absent(v) OR json_type(v) IN ('BIGINT', 'UBIGINT', 'HUGEINT') THEN NULL
    WHEN json_type(v) <> 'VARCHAR' OR (is_read AND regexp_matches(v->>'$', white_space())) THEN v::VARCHAR END;
CREATE MACRO text_id(s) AS left(sha256(s), 16);
CREATE MACRO identifier(v, s) AS CASE WHEN is_absent(v) THEN text_id(s) ELSE v->>'$' END;
CREATE MACRO content(title, body) AS trim(coalesce(title, '') || ' ' || coalesce(body, ''), E' \t\n\r\x0b\x0c');

-- Probabilities of the grades 1 to 5, as LightBlue has them.
CREATE MACRO numbers(v) AS list_transform(members(v), lambda x: coalesce(number(x), 'nan'::DOUBLE));
CREATE MACRO listed(v) AS CASE WHEN json_type(v) = 'VARCHAR' THEN TRY_CAST(v->>'$' AS JSON) ELSE v END;  -- as CSV has it
CREATE MACRO total(p) AS list_aggregate(p, 'fsum');
CREATE MACRO not_probabilities(p) AS CASE
    WHEN len(list_filter(p, lambda x: isnan(x) OR x NOT BETWEEN 0 AND 1.02)) > 0 THEN p::VARCHAR || ' are not probabilities'
    WHEN NOT coalesce(total(p) > 0, false) THEN 'the judge gave none of the grades any probability'
    WHEN total(p) > 1.02 THEN 'a sum of ' || format('{:g}', total(p)) || ' is above 1' END;
CREATE MACRO expected_grade(p) AS  -- sum i p(i) / sum p(i), which rounding may push past the ends
    greatest(1.0::DOUBLE, least(5.0::DOUBLE, total(list_transform(p, lambda x, i: i * x)) / total(p)));
CREATE MACRO mean_probabilities(p, q) AS  -- of both distributions, times the lesser mass: the mean of their grades
    list_transform(p, lambda x, i: least(1.0::DOUBLE, total(p), total(q)) * (x / total(p) + q[i] / total(q)) / 2);
CREATE MACRO is_off(v, grade) AS coalesce(isfinite(number(v)) AND abs(number(v) - grade) > 1e-3, false);

-- Whether a prediction ends in the score 0; the scale that it names ("of 0 to 3", "/3") is no score.
CREATE MACRO first_of(candidates) AS list_filter(candidates, lambda v: NOT is_absent(v))[1];
CREATE MACRO states_zero(s) AS regexp_matches(
    regexp_replace(s, '\b\d+\s*(to|through|and|-|–)\s*\d+\b|(\bout of|/)\s*\d+\b', ' ', 'gi'),
    '(?i)^\s*0\s*$|(score|overall|rating|grade|category|\bO)["''\s*:=#_-]*((is|of)\b["''\s*:]*)?0\b');
