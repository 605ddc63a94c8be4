CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('sad', 'ok, fine', 'it''s "happy"');
CREATE TABLE shop.types (
  id bigint PRIMARY KEY, b boolean, si smallint, i int, bi bigint, r real, d double precision,
  n numeric, n1 numeric(10,2), n2 numeric(38,10), money money, c char(5), vc varchar(20), t text, by bytea,
  dt date, ti time(6), tiz timetz, ts0 timestamp(0), ts3 timestamp(3), ts6 timestamp(6), tz timestamptz, iv interval,
  u uuid, j json, jb jsonb, x xml, e shop.mood, bit1 bit(1), bit5 bit(5), vb varbit(10), ia int[], ta text[], na numeric(10,2)[],
  inet inet, pt point, r4 int4range, hs tsvector);
CREATE TABLE shop.docs (id int PRIMARY KEY, title text, body text, raw bytea, words text[]);
ALTER TABLE shop.docs ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN raw SET STORAGE EXTERNAL, ALTER COLUMN words SET STORAGE EXTERNAL;
CREATE TABLE shop.orders (tenant int, no varchar(10), price numeric(10,2), note text, PRIMARY KEY (tenant, no));
CREATE TABLE shop.full_image (id int PRIMARY KEY, a text, b int);
ALTER TABLE shop.full_image REPLICA IDENTITY FULL;
CREATE TABLE shop.keyless (a int, b text);
ALTER TABLE shop.keyless REPLICA IDENTITY FULL;
INSERT INTO shop.orders VALUES (1, 'snap', 1.10, 'was there before');
INSERT INTO shop.types VALUES (1, true, -32768, 2147483647, 9223372036854775807, 1.5, 0.1,
 12345678901234567890123456789012345678901234567890.12345, 12345678.91, 1234567890123456789012345678.0123456789, 12.34, 'ab', 'grün', E'line\n"quoted" 漢字 😀', '\x00ff10',
 '2026-02-28', '23:59:59.123456', '12:30:15.5+02', '2026-01-02 03:04:05', '2026-01-02 03:04:05.678', '1969-12-31 23:59:59.999999', '2026-01-02 03:04:05.678901+02', '1 year 2 mons 3 days 04:05:06.7',
 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 9007199254740993}', '{"a": 1.10}', '<a>1</a>', 'it''s "happy"', B'1', B'10110', B'101', '{1,NULL,3}', '{a,"b,c",NULL}', '{1.10,2.00}',
 '10.0.0.1/8', '(1.5,2.5)', '[1,5)', 'a b');
INSERT INTO shop.types (id) VALUES (2);
INSERT INTO shop.types (id, dt, ts6, tz, n, n1) VALUES (3, 'infinity', '-infinity', 'infinity', 'NaN', 'NaN');
INSERT INTO shop.types (id, dt, ts6, tz, bi) VALUES (4, '0044-03-15 BC', '0044-03-15 12:00:00 BC', '0001-01-01 00:00:00+00', -9223372036854775808);
INSERT INTO shop.docs SELECT 1, 'one', string_agg(md5(g::text), ''), decode(string_agg(md5(g::text), ''), 'hex'), array_agg(md5(g::text)) FROM generate_series(1,400) g;
UPDATE shop.docs SET title = 'two' WHERE id = 1;
UPDATE shop.docs SET body = NULL, words = '{x}' WHERE id = 1;
DELETE FROM shop.docs WHERE id = 1;
BEGIN;
INSERT INTO shop.orders VALUES (1, 'A', 2.50, 'first'), (1, 'B', 3.00, 'second');
UPDATE shop.orders SET price = 9.99 WHERE no = 'A';
COMMIT;
UPDATE shop.orders SET no = 'C' WHERE no = 'A';
DELETE FROM shop.orders WHERE no = 'B';
INSERT INTO shop.full_image VALUES (1, 'x', 1);
UPDATE shop.full_image SET b = 2;
DELETE FROM shop.full_image;
INSERT INTO shop.keyless VALUES (1, 'a');
UPDATE shop.keyless SET b = 'b';
DELETE FROM shop.keyless;
TRUNCATE shop.orders;
SELECT pg_logical_emit_message(true, 'outbox', 'hello');
