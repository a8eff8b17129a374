ALTER USER 'relay'@'%' IDENTIFIED BY 'relay';
