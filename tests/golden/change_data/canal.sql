CREATE DATABASE shop;
USE shop;
CREATE TABLE types (
  id bigint unsigned PRIMARY KEY, ti tinyint, tiu tinyint unsigned, flag tinyint(1), si smallint, siu smallint unsigned, mi mediumint, miu mediumint unsigned,
  i int(11), iu int(10) unsigned, bi bigint, biu bigint unsigned, iz int(6) unsigned zerofill, f float, d double, n decimal(10,2), nu decimal(12,4) unsigned, n65 decimal(65,30),
  b1 bit(1), b8 bit(8), b64 bit(64), y year, dt date, t time, t6 time(6), d0 datetime, d6 datetime(6), ts timestamp NULL, ts6 timestamp(6) NULL,
  c char(5), vc varchar(20), tx text, lt longtext, bin binary(4), vb varbinary(10), bl blob, tbl tinyblob,
  e enum('sad','ok, fine','it''s "happy"'), s set('a','b"c','d'), s64 set('m01','m02','m03','m04','m05','m06','m07','m08','m09','m10','m11','m12','m13','m14','m15','m16','m17','m18','m19','m20','m21','m22','m23','m24','m25','m26','m27','m28','m29','m30','m31','m32','m33','m34','m35','m36','m37','m38','m39','m40','m41','m42','m43','m44','m45','m46','m47','m48','m49','m50','m51','m52','m53','m54','m55','m56','m57','m58','m59','m60','m61','m62','m63','m64'),
  j json, g point, l1 varchar(10) CHARACTER SET latin1) DEFAULT CHARSET=utf8mb4;
INSERT INTO types VALUES (18446744073709551615,-128,255,1,-32768,65535,-8388608,16777215,-2147483648,4294967295,-9223372036854775808,18446744073709551615,42,1.5,0.1,-12345678.91,12345678.9012,12345678901234567890123456789012345.123456789012345678901234567890,
  b'1',b'10110',b'1111111111111111111111111111111111111111111111111111111111111111',2026,'2026-02-28','-838:59:59','23:59:59.123456','2026-01-02 03:04:05','2026-01-02 03:04:05.678901','2026-01-02 03:04:05','2026-01-02 03:04:05.678901',
  'ab','grün 漢字','line\n"quoted" 😀','long',x'00ff10',x'00ff',x'89504e47000aff',x'80','it''s "happy"','a,d','m01,m32,m64','{"a": 9007199254740993, "b": 1.10}',ST_GeomFromText('POINT(1.5 2.5)'),'grün');
INSERT INTO types (id) VALUES (1);
INSERT INTO types (id, b1, dt, d0, ts, y, e, s, flag, j) VALUES (2, b'0', '0000-00-00', '0000-00-00 00:00:00', '0000-00-00 00:00:00', 0, '', '', 5, 'null');
INSERT INTO types (id, b1, dt, d0, flag, e, s) VALUES (3, b'1', '2026-00-00', '1000-01-01 00:00:00', 0, 'ok, fine', 'b"c');
INSERT INTO types (id, biu, dt) VALUES (4, 5, '9999-12-31');
CREATE TABLE orders (tenant int, no varchar(10), price decimal(10,2), note text, PRIMARY KEY (tenant, no));
INSERT INTO orders VALUES (1,'A',2.50,'first'),(1,'B',3.00,'second'),(1,'D',4.00,NULL);
UPDATE orders SET price = price + 1, note = IF(no='A','changed',note) WHERE no IN ('A','B');
UPDATE orders SET no = 'C' WHERE no = 'A';
BEGIN;
UPDATE orders SET price = 7 WHERE no = 'B';
UPDATE orders SET price = 8 WHERE no = 'B';
DELETE FROM orders WHERE no = 'B';
COMMIT;
SET SESSION binlog_row_image=MINIMAL;
UPDATE orders SET price = 11 WHERE no = 'D';
INSERT INTO orders (tenant, no) VALUES (1, 'M');
DELETE FROM orders WHERE no = 'M';
SET SESSION binlog_row_image=NOBLOB;
UPDATE orders SET price = 12 WHERE no = 'D';
SET SESSION binlog_row_image=FULL;
CREATE TABLE keyless (a int, b varchar(5));
INSERT INTO keyless VALUES (1,'x'),(1,'x');
DELETE FROM keyless LIMIT 1;
ALTER TABLE keyless ADD COLUMN c int;
INSERT INTO keyless VALUES (2,'y',3);
RENAME TABLE keyless TO `_keyless_del`;
TRUNCATE TABLE orders;
CREATE TABLE `Odd Names` (`the id` int PRIMARY KEY, `a.b` int, `select` int);
INSERT INTO `Odd Names` VALUES (1,2,3);
DROP TABLE `_keyless_del`;
CREATE TABLE `_orders_gho` (id int PRIMARY KEY);
INSERT INTO `_orders_gho` VALUES (1);
